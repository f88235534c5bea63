#!lua flags=no-writes
-- Reads one page of a shard's due or dead set, by score, for people to look at.
--
-- KEYS  1 the set (zset)   2 messages (hash)   3 why (hash)
-- ARGV  1 first score ('-inf': no limit)   2 score to end before ('+inf': no limit)
--       3 id after which to begin, among members with the first score ('': with the first of them)
--       4 maximum number of places to read   5 bytes of each payload to return
--       6 maximum bytes of envelopes to read (the first envelope is always read)
-- Returns  {now us, score and id after which the next page begins or twice '' at the end, then five values for each
--          message: id, score, size of the envelope, head of the envelope, last reason}; ids without a message are left
--          out. A page begins after a place, not after a count: messages before it come and go.
--- @include include/now
--- @include include/row
local SET, MESSAGES, WHY = KEYS[1], KEYS[2], KEYS[3]
local ended = tonumber(ARGV[2]) or math.huge
-- Members with the same score are sorted by name: a binary search finds the place after an id.
local function places_before(score, id)
  if score == '-inf' then return 0 end
  local low = redis.call('ZCOUNT', SET, '-inf', '(' .. score)
  local high = id == '' and low or redis.call('ZCOUNT', SET, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZRANGE', SET, middle, middle)[1] <= id then low = middle + 1 else high = middle end
  end
  return low
end
local before, count = places_before(ARGV[1], ARGV[3]), tonumber(ARGV[4])
local payload_bytes, bytes_left = tonumber(ARGV[5]), tonumber(ARGV[6])
local found = redis.call('ZRANGE', SET, before, before + count - 1, 'WITHSCORES')
local reply = {now_us(), '', ''}
for at = 1, #found, 2 do
  if tonumber(found[at + 1]) >= ended then return reply end
  bytes_left = row_add(reply, MESSAGES, WHY, found[at], found[at + 1], payload_bytes, bytes_left)
  if not bytes_left then
    reply[2], reply[3] = found[at - 1], found[at - 2]
    return reply
  end
end
if #found == count * 2 then reply[2], reply[3] = found[#found], found[#found - 1] end
return reply
