#!lua flags=allow-oom
-- Records are dealt with that leave nothing in the store which would say so: cancellations by their header.
--
-- KEYS  1 offsets (hash: how far the records of each log were dealt with)
-- ARGV  pairs: log, offset
-- Returns  how many of them were new
--- @include include/origins
local known, new = {}, 0
for at = 1, #ARGV, 2 do
  local log, offset = origin_log(KEYS[1], known, ARGV[at]), tonumber(ARGV[at + 1])
  if origin_is_new(log, offset) then new = new + 1 end
  origin_note(log, offset, false)
end
origins_write(KEYS[1], known)
return new
