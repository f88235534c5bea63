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

-- Parks keyed messages (position, index field, mode), which `values` has between two places, one by one and in order,
-- because a batch may hold the same key twice. Adds all to `skip`. Returns the positions of those that were not parked,
-- to be kept out and to be rejected, and what the history notes.
local function park_keyed(keys, values, from, to, skip, added)
  local kept, rejected, replaced = {}, {}, {}
  for at = from + 1, to, 3 do
    local position, field, mode = tonumber(values[at]), values[at + 1], values[at + 2]
    local place = 2 + position * 3
    if not skip[position] then
      skip[position] = true
      if older_stays(keys, field, mode, replaced, added) then
        local positions = mode == 'keep' and kept or rejected
        positions[#positions + 1] = position
      else
        redis.call('ZADD', keys.due, values[place + 1], values[place])
        redis.call('HSET', keys.messages, values[place], values[place + 2])
        index_add(keys.index, field, values[place])
      end
    end
  end
  return kept, rejected, replaced
end
