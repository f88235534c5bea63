-- What becomes of a parked message when a younger one with the same key comes.
--- @include include/held
--- @include include/history
--- @include include/key_index
--- @include include/moved
--- @include include/refused
--- @include include/routes

-- Returns whether an older message with this key is parked and stays. With the mode replace it is removed, and what the
-- history notes of it is added to `replaced`, and it is counted out in `added` (route -> messages parked by this call).
-- `keys`: due, messages, index, counts, why, refused and moved of the shard.
local function older_stays(keys, field, mode, replaced, added)
  local older, route, stays = redis.call('HGET', keys.index, field) or '', string.match(field, '^[^%z]*'), false
  for at = 1, #older, ID_BYTES do
    local id = string.sub(older, at, at + ID_BYTES - 1)
    local due = redis.call('ZSCORE', keys.due, id)
    if due and mode == 'replace' then
      local envelope = refused_remove(keys.refused, id, redis.call('HGET', keys.messages, id) or '')
      replaced[#replaced + 1] = {REPLACED, id, envelope, ''}
      moved(keys.moved, 'replaced', {id}, '')
      redis.call('ZREM', keys.due, id)
      redis.call('HDEL', keys.messages, id)
      redis.call('HDEL', keys.why, id)
      index_remove(keys.index, field, id)
      redis.call('HINCRBY', keys.counts, 'replaced', 1)
      added[route] = (added[route] or 0) - 1
      if tonumber(due) >= HELD_MS then route_add(keys.counts, 'held', route, -1) end
    elseif due then
      stays = true
    end
  end
  return stays
end
