-- The records of a call to park, as ranges of the logs (include/origins.lua).
--- @include include/origins

-- Returns log and offset of the record at a position (from 1) in ranges that `values` has after a place.
local function origin_at(values, place, position)
  while position > tonumber(values[place + 3]) do
    position, place = position - values[place + 3], place + 3
  end
  return values[place + 1], values[place + 2] + position - 1
end

-- Marks the records of a call: `number` ranges (log, first offset, number of records), which `values` has after a
-- place. Records beyond the first `count` are owed. Returns the positions of those first that were dealt with before.
-- A record is new if it was new when the call began: one to be rejected may lie between two that are parked.
local function origins_take(offsets, values, place, number, count)
  local known, passed, ascending = {}, {}, true
  for at = place + 1, place + number * 3, 3 do
    local log, first = origin_log(offsets, known, values[at]), tonumber(values[at + 1])
    ascending = ascending and first >= (log.after or log.mark)
    log.after = first + values[at + 2]
  end
  local position = 0
  for at = place + 1, place + number * 3, 3 do
    local log, first, records = known[values[at]], tonumber(values[at + 1]), tonumber(values[at + 2])
    if ascending and position < count then
      log.raised, log.first = first + records, log.first or first
    else
      for n = 1, records do
        local offset, owed = first + n - 1, position + n > count
        if origin_is_new(log, offset) then
          origin_note(log, offset, owed)
          log.first = math.min(log.first or offset, offset)
        elseif not owed then
          passed[#passed + 1] = position + n
        end
      end
    end
    position = position + records
  end
  origins_write(offsets, known)
  return passed
end

-- Marks records at these positions, which were taken, as still to become dead letters.
local function origins_owe(offsets, values, place, positions)
  local known = {}
  for _, position in ipairs(positions) do
    local name, offset = origin_at(values, place, position)
    origin_note(origin_log(offsets, known, name), offset, true)
  end
  origins_write(offsets, known)
end
