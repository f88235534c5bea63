-- Which records of each log (bridge/core/message.py, Origin) were dealt with. The hash has three fields for each log:
--   name               -> the next new offset
--   name, NUL, 'owed'  -> lower offsets that are still to become dead letters, 8 bytes each, ascending
--   name, NUL, 'first' -> the lowest offset that was parked: a store that was emptied knows nothing of those before
-- All other lower offsets were dealt with: parked, not parked because of their key, dead, or a cancellation.
local OWED, FIRST = '\0owed', '\0first'

-- Returns what the hash held of a log when the script began. `known` caches the logs that were read.
local function origin_log(offsets, known, name)
  local log = known[name]
  if log then return log end
  local values = redis.call('HMGET', offsets, name, name .. OWED, name .. FIRST)
  log = {begun = values[3] and true}
  log.mark = tonumber(values[1] or '0')
  log.raised = log.mark
  log.owed, log.seen, log.owes = {}, {}, values[2] and true
  for at = 1, #(values[2] or ''), 8 do log.owed[struct.unpack('>I8', values[2], at)] = true end
  known[name] = log
  return log
end

-- Returns whether a record is new or owed; true only once for each record in a script.
local function origin_is_new(log, offset)
  local new = (offset >= log.mark or log.owed[offset]) and not log.seen[offset]
  log.seen[offset] = true
  return new
end

-- Marks the record as dealt with, or as still to become a dead letter (owed).
local function origin_note(log, offset, owed)
  log.owed[offset] = owed or nil
  if offset >= log.raised then log.raised = offset + 1 end
end

-- Writes even if nothing has changed, so that a WAIT after the script covers what an earlier script wrote.
local function origins_write(offsets, known)
  for name, log in pairs(known) do
    local owed, packed = {}, {}
    for offset in pairs(log.owed) do owed[#owed + 1] = offset end
    table.sort(owed)
    for n, offset in ipairs(owed) do packed[n] = struct.pack('>I8', offset) end
    redis.call('HSET', offsets, name, string.format('%d', log.raised))
    if log.first and not log.begun then redis.call('HSET', offsets, name .. FIRST, string.format('%d', log.first)) end
    if #owed > 0 then
      redis.call('HSET', offsets, name .. OWED, table.concat(packed))
    elseif log.owes then
      redis.call('HDEL', offsets, name .. OWED)
    end
  end
end
