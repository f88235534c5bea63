-- A claim token is the head of its process (4 random bytes) and a rising number (4 bytes, big-endian).
-- Returns both. `at` is where the token begins in the text.
local function token_parts(text, at)
  return string.sub(text, at, at + 3), struct.unpack('>I4', text, at + 4)
end

-- Returns the claimed members that the calls with the tokens `first` to `last` of one process took.
local function claimed_between(claimed, first, last)
  local head, low = token_parts(first, 1)
  local _, high = token_parts(last, 1)
  local members = {}
  for _, member in ipairs(redis.call('ZRANGE', claimed, 0, -1)) do
    local own, number = token_parts(member, 21)
    if own == head and number >= low and number <= high then members[#members + 1] = member end
  end
  return members
end
