#!lua flags=no-writes
-- Reads messages by their ids, wherever they stand.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 claimed (zset)   4 dead (zset)   5 why (hash)
-- ARGV  1 bytes of each payload to show (-1: all), then ids
-- Returns  {now us, then fives, one an id: state (parked, claimed, dead, none), score, envelope's size, its head,
--          last reason}
--- @include include/now
--- @include include/head
local show = tonumber(ARGV[1])
local reply = {now_us()}

local function lease_of(id)
  for _, member in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
    if string.sub(member, 1, 20) == id then return redis.call('ZSCORE', KEYS[3], member) end
  end
  return '0'
end

for at = 2, #ARGV do
  local id = ARGV[at]
  local envelope = redis.call('HGET', KEYS[2], id)
  local state, score = 'none', '0'
  if envelope then
    local due, died = redis.call('ZSCORE', KEYS[1], id), redis.call('ZSCORE', KEYS[4], id)
    if due then
      state, score = 'parked', due
    elseif died then
      state, score = 'dead', died
    else
      state, score = 'claimed', lease_of(id)
    end
  end
  reply[#reply + 1] = state
  reply[#reply + 1] = score
  reply[#reply + 1] = envelope and #envelope or 0
  reply[#reply + 1] = envelope and envelope_head(envelope, show) or ''
  reply[#reply + 1] = redis.call('HGET', KEYS[5], id) or ''
end
return reply
