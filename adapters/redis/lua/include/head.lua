-- Returns the head of an envelope (bridge/parking/envelope.py) and the first bytes of its payload; all for a negative
-- number.
local function envelope_head(envelope, payload_bytes)
  if payload_bytes < 0 then return envelope end
  local at = 20
  for _ = 1, 3 do at = at + 1 + (string.byte(envelope, at) or 0) end
  return string.sub(envelope, 1, at - 1 + payload_bytes)
end
