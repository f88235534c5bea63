#!lua flags=no-writes
-- Reads the messages of a shard whole, in any state and in no order: a step of HSCAN. So a message that stays in the
-- shard from the first step to the last is read at least once, whatever moves it makes meanwhile.
--
-- KEYS  1 messages (hash)   2 due (zset)   3 dead (zset)   4 why (hash)
-- ARGV  1 cursor ('0': from the beginning)   2 about how many messages to read
-- Returns  {next cursor ('0': at the end), then five values for each message: id, state (parked, claimed, dead), score
--          (0 for a claimed one), envelope, last reason}
local MESSAGES, DUE, DEAD, WHY = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local step = redis.call('HSCAN', MESSAGES, ARGV[1], 'COUNT', ARGV[2])
local reply, found = {step[1]}, step[2]
for at = 1, #found, 2 do
  local id, state = found[at], 'parked'
  local score = redis.call('ZSCORE', DUE, id)
  if not score then
    score = redis.call('ZSCORE', DEAD, id)
    state = score and 'dead' or 'claimed'
  end
  for _, value in ipairs({id, state, score or '0', found[at + 1], redis.call('HGET', WHY, id) or ''}) do
    reply[#reply + 1] = value
  end
end
return reply
