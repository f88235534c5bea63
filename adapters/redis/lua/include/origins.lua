-- How far the records of each log (bridge/core/message.py, Origin) were dealt with. The hash holds two fields of a log:
--   name              -> the next offset that is new
--   name, NUL, 'owed' -> offsets below that one that are still to become dead letters, 8 bytes each, rising
-- Everything else below is parked, was kept away, is dead or has cancelled something, and is never dealt with again.
local OWED = '\0owed'

-- What the hash says of a log, as it was when the script began; `known` holds what was read already.
local function origin_log(offsets, known, name)
  local log = known[name]
  if log then return log end
  local values = redis.call('HMGET', offsets, name, name .. OWED)
  log = {}
  log.mark = tonumber(values[1] or '0')
  log.raised = log.mark
  log.owed, log.seen, log.owes = {}, {}, values[2] and true
  for at = 1, #(values[2] or ''), 8 do log.owed[struct.unpack('>I8', values[2], at)] = true end
  known[name] = log
  return log
end

-- Whether a record is new, or owed; each is so once a script.
local function origin_is_new(log, offset)
  local new = (offset >= log.mark or log.owed[offset]) and not log.seen[offset]
  log.seen[offset] = true
  return new
end

-- From now on the record counts as dealt with, or is owed a dead letter.
local function origin_note(log, offset, owed)
  log.owed[offset] = owed or nil
  if offset >= log.raised then log.raised = offset + 1 end
end

-- Writes in any case, so that a WAIT after the script waits for what an earlier one wrote.
local function origins_write(offsets, known)
  for name, log in pairs(known) do
    local owed, packed = {}, {}
    for offset in pairs(log.owed) do owed[#owed + 1] = offset end
    table.sort(owed)
    for n, offset in ipairs(owed) do packed[n] = struct.pack('>I8', offset) end
    redis.call('HSET', offsets, name, string.format('%d', log.raised))
    if #owed > 0 then
      redis.call('HSET', offsets, name .. OWED, table.concat(packed))
    elseif log.owes then
      redis.call('HDEL', offsets, name .. OWED)
    end
  end
end
