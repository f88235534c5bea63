#!lua flags=no-writes
-- Reads messages by id, whatever their state.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 claims (hash)   4 dead (zset)   5 why (hash)
-- ARGV  1 bytes of each payload to return (-1: all), then ids
-- Returns  {now us, then five values for each id: state (parked, claimed, dead, none), score, size of the envelope,
--          head of the envelope, last reason}
--- @include include/claims
--- @include include/now
--- @include include/head
local DUE, MESSAGES, CLAIMS, DEAD, WHY = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local payload_bytes = tonumber(ARGV[1])
local reply = {now_us()}

local leases

local function lease_of(id)
  leases = leases or claimed_ids(redis.call('HVALS', CLAIMS))
  return string.format('%d', leases[id] or 0)
end

for at = 2, #ARGV do
  local id = ARGV[at]
  local envelope = redis.call('HGET', MESSAGES, id)
  local state, score = 'none', '0'
  if envelope then
    local due, died = redis.call('ZSCORE', DUE, id), redis.call('ZSCORE', DEAD, id)
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
  reply[#reply + 1] = envelope and envelope_head(envelope, payload_bytes) or ''
  reply[#reply + 1] = redis.call('HGET', WHY, id) or ''
end
return reply
