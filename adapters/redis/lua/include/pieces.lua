-- Lua can pass fewer than 8000 values at once, and a failure there would come in the middle of a move; so long lists go
-- to Redis in pieces, of an even size because some are lists of pairs.
local PIECE = 2000

local function in_pieces(command, key, values)
  for from = 1, #values, PIECE do
    redis.call(command, key, unpack(values, from, math.min(from + PIECE - 1, #values)))
  end
end
