-- A call with a token is carried out once. Its key holds the last token and the reply, for an hour.
local TOKEN_MS = 3600000

-- Returns the reply that a call with this token got before, or nil.
local function answered(key, token)
  local last = redis.call('GET', key)
  if not last or string.sub(last, 1, #token) ~= token then return nil end
  -- A write, so that a WAIT after this call also covers what the first call wrote on another connection.
  redis.call('PEXPIRE', key, TOKEN_MS)
  return cmsgpack.unpack(string.sub(last, #token + 1))
end

local function answer(key, token, reply)
  redis.call('SET', key, token .. cmsgpack.pack(reply), 'PX', TOKEN_MS)
  return reply
end
