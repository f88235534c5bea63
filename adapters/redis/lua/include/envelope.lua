-- The head of an envelope, laid out in bridge/parking/envelope.py; what changes here must change there.
--   version u8 | due_ms u64 | tries u16 | arrived_ms u64 | route u8+text | key u8+text | ...
-- Nothing here fails over an envelope that is damaged or of another version: a script that stops halfway would leave
-- the messages after it nowhere.
local VERSION = 1

-- Where the due moment stands is the same in every version.
local function envelope_due(envelope)
  if #envelope < 9 then return 0 end
  return (struct.unpack('>I8', envelope, 2))
end

-- The envelope with another due moment and another number of tries; nil leaves either as it is.
local function envelope_with(envelope, due_ms, tries)
  if #envelope < 11 or string.byte(envelope) ~= VERSION then return envelope end
  local old_due, old_tries = struct.unpack('>I8I2', envelope, 2)
  return string.sub(envelope, 1, 1) .. struct.pack('>I8I2', due_ms or old_due, tries or old_tries)
    .. string.sub(envelope, 12)
end

-- The field under which the message stands in the key index, or nil when it has no key.
local function envelope_field(envelope)
  if string.byte(envelope) ~= VERSION then return nil end
  local whole, route, key = pcall(struct.unpack, '>Bc0Bc0', envelope, 20)
  if not whole or key == '' then return nil end
  return route .. '\0' .. key
end
