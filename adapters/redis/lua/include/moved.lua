-- Writes a move of messages into the log that the journal reads (adapters/redis/move_log.py). The stream exists only
-- while there is a journal. `value` is the new due moment (ms) or the reason.
local function moved(stream, move, ids, value)
  if #ids > 0 and redis.call('EXISTS', stream) == 1 then
    redis.call('XADD', stream, '*', 'm', move, 'i', table.concat(ids), 'v', value)
  end
end

-- Begins a log that is missing, because the store was emptied: what leaves before its reader comes is in it.
local function log_begin(stream)
  if redis.call('EXISTS', stream) == 0 then redis.call('XADD', stream, '*', 'm', 'start', 'i', '', 'v', '') end
end

-- Returns the ids of `count` messages, three values each, from place `at` on.
local function ids_in(args, at, count)
  local ids = {}
  for n = 1, count do ids[n] = args[at + n * 3 - 3] end
  return ids
end

-- Returns the ids of those of `count` messages that no list of positions names.
local function ids_left(args, at, count, lists)
  local named, left = {}, {}
  for _, positions in ipairs(lists) do
    for _, position in ipairs(positions) do named[position] = true end
  end
  for n = 1, count do
    if not named[n] then left[#left + 1] = args[at + n * 3 - 3] end
  end
  return left
end
