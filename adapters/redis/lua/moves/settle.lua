#!lua flags=allow-oom
-- claimed -> gone: the broker has confirmed. Fenced by the token: a lease that expired, or that another instance holds,
-- settles nothing.
--
-- KEYS  1 messages (hash)   2 claims (hash)   3 key index (hash)   4 counts (hash)   5 why (hash)   6 refused (zset)
--       7 moved (stream)
-- ARGV  1 number of groups, then as many times: claim token, route, ids in one string
--       then pairs: index field, those of the ids that are found by it, in one string
-- Returns  the number settled; the caller no longer held the others
--- @include include/claims
--- @include include/key_index
--- @include include/moved
--- @include include/refused
--- @include include/routes
local MESSAGES, CLAIMS, INDEX, COUNTS, WHY, REFUSED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local MOVED = KEYS[7]
local fields_at = ARGV[1] * 3 + 2
local wanted = {}
for at = 2, fields_at - 1, 3 do wanted[ARGV[at]] = (wanted[ARGV[at]] or '') .. ARGV[at + 2] end
local held = claims_take(CLAIMS, wanted)
local ids, numbers, all = {}, {}, true
for at = 2, fields_at - 1, 3 do
  local token, route, group = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local before = #ids
  for place = 1, #group, 20 do
    local id = string.sub(group, place, place + 19)
    if was_held(held, token, id) then ids[#ids + 1] = id end
  end
  all = all and #ids - before == #group / 20
  numbers[route] = (numbers[route] or 0) + #ids - before
end
if #ids == 0 then return 0 end
if redis.call('EXISTS', WHY) == 1 and in_pieces('HDEL', WHY, ids) > 0 then
  for _, id in ipairs(ids) do refused_remove(REFUSED, id, redis.call('HGET', MESSAGES, id) or '') end
end
in_pieces('HDEL', MESSAGES, ids)
local settled = all or id_set(table.concat(ids))
for at = fields_at, #ARGV, 2 do
  local gone = all and ARGV[at + 1] or ids_within(ARGV[at + 1], settled)
  if gone ~= '' then index_remove(INDEX, ARGV[at], gone) end
end
redis.call('HINCRBY', COUNTS, 'delivered', #ids)
moved(MOVED, 'delivered', ids, '')
for route, number in pairs(numbers) do route_add(COUNTS, 'parked', route, -number) end
return #ids
