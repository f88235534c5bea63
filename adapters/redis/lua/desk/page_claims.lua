#!lua flags=no-writes
-- Reads one page of a shard's claimed messages, by the end of the lease and the id, for people to look at.
--
-- KEYS  1 claims (hash)   2 messages (hash)   3 why (hash)
-- ARGV  1 first end of a lease ('-inf': no limit)   2 id after which to begin among those of the first end
--       3 maximum number of places to read   4 bytes of each payload to return
--       5 maximum bytes of envelopes to read (the first envelope is always read)
-- Returns  as desk/page.lua, with the end of the lease as the score
--- @include include/claims
--- @include include/now
--- @include include/row
local CLAIMS, MESSAGES, WHY = KEYS[1], KEYS[2], KEYS[3]
local first, begin, last = tonumber(ARGV[1]) or -1, ARGV[2], tonumber(ARGV[3])
local payload_bytes, bytes_left = tonumber(ARGV[4]), tonumber(ARGV[5])

local function is_before(one, other)
  return one[1] < other[1] or one[1] == other[1] and one[2] < other[2]
end

local found = {}
for id, end_ms in pairs(claimed_ids(redis.call('HVALS', CLAIMS))) do
  if end_ms > first or end_ms == first and id > begin then found[#found + 1] = {end_ms, id} end
end
table.sort(found, is_before)
local reply = {now_us(), '', ''}
local function go_on_after(place)
  reply[2], reply[3] = string.format('%d', found[place][1]), found[place][2]
end
for place = 1, math.min(last, #found) do
  local score = string.format('%d', found[place][1])
  bytes_left = row_add(reply, MESSAGES, WHY, found[place][2], score, payload_bytes, bytes_left)
  if not bytes_left then
    go_on_after(place - 1)
    return reply
  end
end
if last < #found then go_on_after(last) end
return reply
