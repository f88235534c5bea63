#!lua flags=allow-oom
-- claimed -> gone: the broker has confirmed. Fenced by the token: a lease that expired, or that another instance holds,
-- settles nothing.
--
-- KEYS  1 messages (hash)   2 claims (hash)   3 counts (hash)   4 why (hash)   5 refused (zset)   6 moved (stream)
--       and with pairs:   7 key index (hash)
-- ARGV  1 number of groups, then as many times: claim token, route, ids in one string
--       then pairs: index field, those of the ids that are found by it, in one string
-- Returns  the number settled; the caller no longer held the others
--- @include include/pieces
--- @include include/routes
local MESSAGES, CLAIMS, COUNTS, WHY, REFUSED, MOVED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local INDEX = KEYS[7]
local fields_at = ARGV[1] * 3 + 2
-- Nearly always the groups are whole claims, as they were made.
local tokens, ids, numbers = {}, {}, {}
for at = 2, fields_at - 1, 3 do tokens[#tokens + 1] = ARGV[at] end
local whole = #tokens <= PIECE
for n, record in ipairs(whole and redis.call('HMGET', CLAIMS, unpack(tokens)) or {}) do
  whole = whole and record and string.sub(record, 9) == ARGV[n * 3 + 1]
end
if whole then
  redis.call('HDEL', CLAIMS, unpack(tokens))
  for at = 2, fields_at - 1, 3 do
    local route, group = ARGV[at + 1], ARGV[at + 2]
    numbers[route] = (numbers[route] or 0) + #group / 20
    for place = 1, #group, 20 do ids[#ids + 1] = string.sub(group, place, place + 19) end
  end
else
  --- @include include/claims
  local wanted = {}
  for at = 2, fields_at - 1, 3 do wanted[ARGV[at]] = (wanted[ARGV[at]] or '') .. ARGV[at + 2] end
  local held = claims_take(CLAIMS, wanted)
  for at = 2, fields_at - 1, 3 do
    local token, route, group = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    for place = 1, #group, 20 do
      local id = string.sub(group, place, place + 19)
      if was_held(held, token, id) then
        ids[#ids + 1], numbers[route] = id, (numbers[route] or 0) + 1
      end
    end
  end
end
if #ids == 0 then return 0 end
if redis.call('EXISTS', WHY, MOVED) > 0 then
  --- @include include/moved
  --- @include include/refused
  if in_pieces('HDEL', WHY, ids) > 0 then
    for _, id in ipairs(ids) do refused_remove(REFUSED, id, redis.call('HGET', MESSAGES, id) or '') end
  end
  moved(MOVED, 'delivered', ids, '')
end
in_pieces('HDEL', MESSAGES, ids)
if fields_at <= #ARGV then
  --- @include include/key_index
  local settled = not whole and id_set(table.concat(ids))
  for at = fields_at, #ARGV, 2 do
    local gone = whole and ARGV[at + 1] or ids_within(ARGV[at + 1], settled)
    if gone ~= '' then index_remove(INDEX, ARGV[at], gone) end
  end
end
redis.call('HINCRBY', COUNTS, 'delivered', string.format('%d', #ids))
for route, number in pairs(numbers) do route_add(COUNTS, 'parked', route, -number) end
return #ids
