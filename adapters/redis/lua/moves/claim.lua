#!lua flags=allow-oom
-- parked -> claimed. Takes what is due, now or in a moment, in order of due and id, if the caller drains this shard or
-- nobody does.
-- The removal comes before the adding, and the script may write when memory is full: claiming is what frees memory.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 claimed (zset id+token -> lease end ms)   4 drain (string: who drains)
-- ARGV  1 instance   2 drain ms   3 claim token (8 bytes)   4 lease ms   5 messages at most   6 bytes at most
--       7 ms ahead
-- Returns  {0, now us, owner} when another instance drains the shard; else
--          {1, now us, next due ms or -1, ghosts, id, envelope, id, envelope, ...}; a ghost is an id without envelope
--          (someone deleted it by hand): it is dropped and counted.
--- @include include/now
--- @include include/pieces
local now = now_us()
local owner = redis.call('GET', KEYS[4])
if owner and owner ~= ARGV[1] then return {0, now, owner} end
if owner then
  redis.call('PEXPIRE', KEYS[4], ARGV[2])
else
  redis.call('SET', KEYS[4], ARGV[1], 'PX', ARGV[2])
end

-- Envelopes are read in pieces, and no more of them than probably still fit: reading a body costs Redis a millisecond a
-- megabyte and more, also when it is then left for the next claim.
local CHUNK = 32
local now_ms = math.floor(now / 1000)
local limit, bytes_left = tonumber(ARGV[5]), tonumber(ARGV[6])
local reply, leases, taken, ghosts = {1, now, -1, 0}, {}, 0, 0
local lease_end = now_ms + tonumber(ARGV[4])
local ids = limit > 0 and redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms + ARGV[7], 'LIMIT', 0, limit) or {}
local from, chunk, largest = 1, 1, 1
while from <= #ids and bytes_left > 0 do
  local envelopes = redis.call('HMGET', KEYS[2], unpack(ids, from, math.min(from + chunk - 1, #ids)))
  for n = 1, #envelopes do
    local id, envelope = ids[from + n - 1], envelopes[n]
    if envelope and taken > 0 and #envelope > bytes_left then
      bytes_left = -1
      break
    end
    taken = taken + 1
    if envelope then
      bytes_left = bytes_left - #envelope
      if #envelope > largest then largest = #envelope end
      reply[#reply + 1] = id
      reply[#reply + 1] = envelope
      leases[#leases + 1] = lease_end
      leases[#leases + 1] = id .. ARGV[3]
    else
      ghosts = ghosts + 1
    end
  end
  from = from + chunk
  chunk = math.max(1, math.min(CHUNK, math.floor(bytes_left / largest)))
end
if taken > 0 then
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, taken - 1)
  in_pieces('ZADD', KEYS[3], leases)
end
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
reply[3] = tonumber(head[2]) or -1
reply[4] = ghosts
return reply
