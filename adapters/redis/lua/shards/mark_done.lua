#!lua flags=allow-oom
-- Marks records as dealt with that leave no message in the store: cancellations by header.
--
-- KEYS  1 offsets (hash: which records of each log were dealt with)
-- ARGV  pairs: log, offset
-- Returns  the number of new ones
--- @include include/origins
local OFFSETS = KEYS[1]
local known, new = {}, 0
for at = 1, #ARGV, 2 do
  local log, offset = origin_log(OFFSETS, known, ARGV[at]), tonumber(ARGV[at + 1])
  if origin_is_new(log, offset) then new = new + 1 end
  origin_note(log, offset, false)
end
origins_write(OFFSETS, known)
return new
