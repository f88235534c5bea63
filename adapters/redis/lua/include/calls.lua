-- A call to park is carried out once. The counts have a field for each caller: the token of its last call (8 bytes),
-- Unix s of that call (4 bytes), and its reply if that has anything. What an instance restores comes from a caller of
-- its own: it repeats its calls beside those of the intake.
local CALL, CALL_BYTES, KEPT_S = '\1call\1', 12, 3600

-- Forgets the calls of callers that have made none for an hour.
local function calls_forget(counts, now)
  local fields = redis.call('HGETALL', counts)
  for at = 1, #fields, 2 do
    if string.sub(fields[at], 1, #CALL) == CALL and struct.unpack('>I4', fields[at + 1], 9) < now - KEPT_S then
      redis.call('HDEL', counts, fields[at])
    end
  end
end

-- Returns the reply that a call with this token got before, or nil. `last` is what the field has.
local function call_answered(counts, field, last, call)
  if not last then calls_forget(counts, struct.unpack('>I4', call, 9)) end
  if not last or string.sub(last, 1, 8) ~= string.sub(call, 1, 8) then return nil end
  -- A write, so that a WAIT after this call also covers what the first call wrote on another connection.
  redis.call('HSET', counts, field, last)
  return #last == CALL_BYTES and 1 or cmsgpack.unpack(string.sub(last, CALL_BYTES + 1))
end
