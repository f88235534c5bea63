#!lua flags=allow-oom
-- A record is dealt with that leaves nothing in the store which would say so: a cancellation by its header.
--
-- KEYS  1 offsets (hash: how far the records of each log were dealt with)
-- ARGV  1 log   2 offset
-- Returns  1 when it was new, else 0
--- @include include/origins
local known = {}
local log, offset = origin_log(KEYS[1], known, ARGV[1]), tonumber(ARGV[2])
local new = origin_is_new(log, offset)
origin_note(log, offset, false)
origins_write(KEYS[1], known)
return new and 1 or 0
