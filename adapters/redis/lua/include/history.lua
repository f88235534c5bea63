-- The history of a shard is a stream. An entry holds several messages, so that they cost little:
--   n -> the number of messages in all entries before it   c -> the number of its own
--   m -> its messages, one after the other, laid out in bridge/parking/history.py; what changes here must change there
--- @include include/now
local PIECE_MAX = 64
-- The most entries that one call removes for being too many, so that it never takes long.
local REMOVED_MAX = 200
local CANCELLED, REPLACED, DIED = 1, 2, 3

-- Returns a message as bytes. Its claim and its publishing are not known here. One that cannot be opened has its id.
local function history_message(ended_ms, state, id, envelope, reason, tries)
  local due, arrived, route, key, size = 0, 0, '', '', #envelope
  if #envelope >= 9 then due = struct.unpack('>I8', envelope, 2) end
  if string.byte(envelope) == 1 then
    local whole, stored, at, name, own, _, payload = pcall(struct.unpack, '>I2I8Bc0Bc0Bc0', envelope, 10)
    if whole then
      arrived, route, key, size = at, name, own, #envelope - payload + 1
      tries = tries or stored
    end
  end
  reason = string.sub(reason, 1, 255)
  return struct.pack('>BI2I4I8I8I8I8I8', state, (tries or 0) % 1024, size, arrived, due, 0, 0, ended_ms) .. id
    .. string.char(#route) .. route .. string.char(#key) .. key .. string.char(#reason) .. reason
end

-- Removes what is older than keep_ms, and the oldest of what is more than `most`. Returns the number of messages left.
local function history_trim(stream, total, now_ms, keep_ms, most)
  redis.call('XTRIM', stream, 'MINID', string.format('%d', now_ms - keep_ms))
  redis.call('PEXPIRE', stream, keep_ms)
  for removed = 0, REMOVED_MAX do
    local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
    if not first then return 0 end
    local kept = total - tonumber(first[2][2])
    if kept <= most or removed == REMOVED_MAX then return kept end
    redis.call('XDEL', stream, first[1])
  end
end

-- Adds pieces (pairs: number of messages, their bytes) and trims the stream. Returns the number of messages left.
local function history_add(stream, pieces, now_ms, keep_ms, most)
  local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  local total = last and tonumber(last[2][2]) + tonumber(last[2][4]) or 0
  for at = 1, #pieces, 2 do
    redis.call('XADD', stream, '*', 'n', string.format('%d', total), 'c', pieces[at], 'm', pieces[at + 1])
    total = total + tonumber(pieces[at])
  end
  return history_trim(stream, total, now_ms, keep_ms, most)
end

-- Adds messages that end now: a list of {state, id, envelope, reason, tries or nil: those of the envelope}.
local function history_note(stream, messages, keep_ms, most)
  if #messages == 0 or most == 0 then return end
  local now_ms, pieces = math.floor(now_us() / 1000), {}
  for n, message in ipairs(messages) do messages[n] = history_message(now_ms, unpack(message)) end
  for from = 1, #messages, PIECE_MAX do
    local to = math.min(from + PIECE_MAX - 1, #messages)
    pieces[#pieces + 1] = to - from + 1
    pieces[#pieces + 1] = table.concat(messages, '', from, to)
  end
  history_add(stream, pieces, now_ms, keep_ms, most)
end
