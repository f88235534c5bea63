#!lua flags=allow-oom
-- parked -> claimed. Takes messages that are due, or due within "ahead", by due moment and id. The caller must
-- drain the shard already, or no instance may drain it.
-- The script may write when memory is full, because claiming frees memory; so it removes before it adds.
--
-- Newer messages must not leave before those of a claim whose reply is lost. So the caller's next claim gives these
-- back first. A call that its caller has given up takes nothing: a server that was frozen still has such calls.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 claims (hash)   4 drain (string: instance)
--       and with claims that got no reply:   5 counts (hash)
-- ARGV  1 instance
--       2 claim token (8 bytes); drain ms, lease ms, ahead ms, in 4 bytes each; us (Unix) at which the caller gives
--       this call up, maximum number of bytes, in 8 bytes each; 1 or 0 in a byte: drain the shard for longer
--       3 maximum number of messages
--       4 first and 5 last token of the caller's claims that got no reply; given only if there are any
-- Returns  {0, now us, instance} when another instance drains the shard; else
--          {1, now us, next due ms or -1, ghosts, all ids in one string, envelope, envelope, ...}; a ghost is an id
--          without an envelope, which someone deleted by hand: it is removed and counted. A call that was given up
--          gets nothing, and 0 as the next due ms: where only the clocks differ, its caller asks again at once
--- @include include/held
--- @include include/now
local DUE, MESSAGES, CLAIMS, DRAIN, COUNTS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local instance, token, limit = ARGV[1], string.sub(ARGV[2], 1, 8), ARGV[3]
local drain_ms, lease_ms, ahead_ms, until_us, bytes_left, longer = struct.unpack('>I4I4I4I8I8B', ARGV[2], 9)
local now = now_us()
if now > until_us then return {1, now, 0, 0, ''} end
if ARGV[4] then
  --- @include include/park_again
  --- @include include/token
  park_again(DUE, MESSAGES, CLAIMS, COUNTS, claims_between(CLAIMS, ARGV[4], ARGV[5]), math.huge)
end
local owner = redis.call('GET', DRAIN)
if owner and owner ~= instance then return {0, now, owner} end
if not owner then
  redis.call('SET', DRAIN, instance, 'PX', drain_ms)
elseif longer == 1 then
  redis.call('PEXPIRE', DRAIN, drain_ms)
end

-- Envelopes are read in chunks of as many as will probably fit. Reading a body costs Redis a millisecond or more
-- for each megabyte, even if it is then left for the next claim.
local CHUNK = 32
local now_ms = math.floor(now / 1000)
local reply, claimed, taken, ghosts = {1, now, -1, 0, ''}, {}, 0, 0
local until_ms = string.format('%d', now_ms + ahead_ms)
local ids = redis.call('ZRANGEBYSCORE', DUE, '-inf', until_ms, 'LIMIT', '0', limit)
local from, chunk, largest = 1, 1, 1
while from <= #ids and bytes_left > 0 do
  local envelopes = redis.call('HMGET', MESSAGES, unpack(ids, from, math.min(from + chunk - 1, #ids)))
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
      claimed[taken - ghosts], reply[taken - ghosts + 5] = id, envelope
    else
      ghosts = ghosts + 1
    end
  end
  from = from + chunk
  chunk = math.max(1, math.min(CHUNK, math.floor(bytes_left / largest)))
end
if taken > 0 then
  redis.call('ZREMRANGEBYRANK', DUE, '0', string.format('%d', taken - 1))
end
if #claimed > 0 then
  reply[5] = table.concat(claimed)
  redis.call('HSET', CLAIMS, token, struct.pack('>I8', now_ms + lease_ms) .. reply[5])
end
local head = redis.call('ZRANGE', DUE, '0', '0', 'WITHSCORES')
local next_ms = tonumber(head[2]) or HELD_MS
reply[3] = next_ms < HELD_MS and next_ms or -1
reply[4] = ghosts
return reply
