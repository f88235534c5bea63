-- Lua's unpack fails at about 8000 values, in the middle of a move. So long lists go to Redis in pieces. Their size is
-- even, because some lists hold pairs. Returns the sum of the replies.
local PIECE = 2000

local function in_pieces(command, key, values)
  local sum = 0
  for from = 1, #values, PIECE do
    sum = sum + redis.call(command, key, unpack(values, from, math.min(from + PIECE - 1, #values)))
  end
  return sum
end
