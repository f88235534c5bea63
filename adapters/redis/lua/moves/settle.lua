#!lua flags=allow-oom
-- claimed -> gone: the broker has confirmed. Fenced by the token: a lease that expired, or that another instance holds,
-- settles nothing.
--
-- KEYS  1 messages (hash)   2 claimed (zset id+token)   3 key index (hash)   4 counts (hash)   5 why (hash)
--       6 refused (zset)
-- ARGV  1 number of routes, then as many times: route, its number of messages
--       then, in the order of the routes, two values for each message: member (id+token), index field or ''
-- Returns  the number settled; the caller no longer held the others
--- @include include/key_index
--- @include include/pieces
--- @include include/refused
--- @include include/routes
local MESSAGES, CLAIMED, INDEX, COUNTS, WHY, REFUSED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local routes = tonumber(ARGV[1])
local first = 2 + routes * 2
local members = {}
for at = first, #ARGV, 2 do members[#members + 1] = ARGV[at] end
local held, ids, fields, refused = {}, {}, {}, {}
for from = 1, #members, PIECE do
  local leases = redis.call('ZMSCORE', CLAIMED, unpack(members, from, math.min(from + PIECE - 1, #members)))
  for n, lease in ipairs(leases) do
    local position = from + n - 1
    if lease then
      local member, field = members[position], ARGV[first + position * 2 - 1]
      local id = string.sub(member, 1, 20)
      held[#held + 1] = member
      ids[#ids + 1] = id
      if field ~= '' then
        local gone = fields[field] or {}
        fields[field], gone[#gone + 1] = gone, id
      end
    else
      refused[position] = true
    end
  end
end
if #held == 0 then return 0 end
in_pieces('ZREM', CLAIMED, held)
if in_pieces('HDEL', WHY, ids) > 0 then
  for _, id in ipairs(ids) do refused_remove(REFUSED, id, redis.call('HGET', MESSAGES, id) or '') end
end
in_pieces('HDEL', MESSAGES, ids)
for field, gone in pairs(fields) do index_remove(INDEX, field, table.concat(gone)) end
redis.call('HINCRBY', COUNTS, 'delivered', #held)
local position = 0
for n = 1, routes do
  local number = tonumber(ARGV[1 + n * 2])
  local gone = number
  if #held < #members then
    for at = position + 1, position + number do gone = refused[at] and gone - 1 or gone end
  end
  position = position + number
  route_add(COUNTS, 'parked', ARGV[n * 2], -gone)
end
return #held
