#!lua flags=no-writes
-- Reads one page of a shard's history, the newest entries first.
--
-- KEYS  1 history (stream)
-- ARGV  1 newest entry to read ('+': the last, '(' in front: exclusive)   2 oldest entry to read ('-': the first)
--       3 maximum number of entries to read   4 maximum bytes to read   5 bytes that a message must contain, or ''
-- Returns  {last entry that was read or '' at the end, then pairs: entry, its messages}; entries without these bytes
--          are left out
local HISTORY = KEYS[1]
local newest, oldest, left, bytes_left, wanted = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local CHUNK = 20
local reply = {''}
while true do
  local count = math.min(CHUNK, left)
  local found = redis.call('XREVRANGE', HISTORY, newest, oldest, 'COUNT', count)
  for _, entry in ipairs(found) do
    local messages = entry[2][6]
    bytes_left = bytes_left - #messages
    if wanted == '' or string.find(messages, wanted, 1, true) then
      reply[#reply + 1] = entry[1]
      reply[#reply + 1] = messages
    end
    newest = '(' .. entry[1]
  end
  if #found < count then return reply end
  left = left - #found
  if left <= 0 or bytes_left <= 0 then
    reply[1] = string.sub(newest, 2)
    return reply
  end
end
