-- Lua's unpack fails at about 8000 values, in the middle of a move. So long lists go to Redis in pieces. Their size is
-- even, because some lists hold pairs.
local PIECE = 2000

local function in_pieces(command, key, values)
  for from = 1, #values, PIECE do
    redis.call(command, key, unpack(values, from, math.min(from + PIECE - 1, #values)))
  end
end
