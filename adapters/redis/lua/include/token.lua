-- A claim token is the head of its process (4 random bytes) and a rising number (4 bytes, big-endian).
-- Returns the claims that the calls with the tokens `first` to `last` of one process made, as fields of the hash.
local function claims_between(claims, first, last)
  local head, low, high = string.sub(first, 1, 4), struct.unpack('>I4', first, 5), struct.unpack('>I4', last, 5)
  local found = {}
  for _, field in ipairs(redis.call('HKEYS', claims)) do
    local number = struct.unpack('>I4', field, 5)
    if string.sub(field, 1, 4) == head and number >= low and number <= high then found[#found + 1] = field end
  end
  return found
end
