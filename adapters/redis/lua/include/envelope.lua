-- The head of an envelope, laid out in bridge/parking/envelope.py; what changes here must change there.
--   version u8 | due_ms u64 | tries u16 | arrived_ms u64 | route u8+text | key u8+text | ...
-- Nothing here fails on a damaged envelope or on one of another version: a script that stops halfway would lose the
-- messages after it.
-- The lower ten bits of tries count failed tries, the upper six stand for destinations that confirmed the message.
local VERSION = 1
local TRIES = 1024

-- The due moment has the same place in every version. 0 for a damaged envelope.
local function envelope_due(envelope)
  if #envelope < 9 then return 0 end
  return (struct.unpack('>I8', envelope, 2))
end

-- Returns the envelope with another due moment and another number of tries; nil keeps the old one.
local function envelope_with(envelope, due_ms, tries)
  if #envelope < 11 or string.byte(envelope) ~= VERSION then return envelope end
  local old_due, old_tries = struct.unpack('>I8I2', envelope, 2)
  return string.sub(envelope, 1, 1) .. struct.pack('>I8I2', due_ms or old_due, tries or old_tries)
    .. string.sub(envelope, 12)
end

-- Returns the envelope with another due moment and no failed tries. Destinations that confirmed it stay known.
local function envelope_retried(envelope, due_ms)
  if #envelope < 11 or string.byte(envelope) ~= VERSION then return envelope end
  local tries = struct.unpack('>I2', envelope, 10)
  return envelope_with(envelope, due_ms, tries - tries % TRIES)
end

-- Returns the route; '' for a damaged envelope, or one of another version.
local function envelope_route(envelope)
  if string.byte(envelope) ~= VERSION then return '' end
  local whole, route = pcall(struct.unpack, '>Bc0', envelope, 20)
  return whole and route or ''
end

-- Returns the message's field in the key index, or nil without a key.
local function envelope_field(envelope)
  if string.byte(envelope) ~= VERSION then return nil end
  local whole, route, key = pcall(struct.unpack, '>Bc0Bc0', envelope, 20)
  if not whole or key == '' then return nil end
  return route .. '\0' .. key
end

-- Returns the envelope with its own id as that of the first copy; one that names another keeps it.
local function envelope_loaded(envelope, id)
  if string.byte(envelope) ~= VERSION then return envelope end
  local whole, _, _, first, after = pcall(struct.unpack, '>Bc0Bc0Bc0', envelope, 20)
  if not whole or first ~= '' then return envelope end
  return string.sub(envelope, 1, after - 2) .. string.char(#id) .. id .. string.sub(envelope, after)
end

-- Returns whether a message was never tried, never loaded from the journal, and is due at this moment.
local function envelope_untouched(envelope, due_ms)
  if string.byte(envelope) ~= VERSION or envelope_due(envelope) ~= due_ms then return false end
  local whole, _, _, first = pcall(struct.unpack, '>Bc0Bc0Bc0', envelope, 20)
  return whole and first == '' and struct.unpack('>I2', envelope, 10) == 0
end
