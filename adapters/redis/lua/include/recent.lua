-- In the recent list a redelivered message finds the id of its first copy. Each entry begins with the total number of
-- messages before it, so that the list can be trimmed by messages without reading it. Every eighth entry trims it.
local RECENT_TOTAL, TRIM_EVERY = '\1recent', 8

-- Adds an entry. `before`: the total that the last call returned; a store of format 1 has none. Returns the new one.
local function recent_add(list, entry, most, before)
  if not before then
    local last = redis.call('LINDEX', list, -1)
    before = last and struct.unpack('>I8', last) + (#last - 8) / 28 or 0
  end
  local total = before + #entry / 28
  local length = redis.call('RPUSH', list, struct.pack('>I8', before) .. entry)
  while length % TRIM_EVERY == 0 or most == 0 do
    local first = redis.call('LINDEX', list, 0)
    if not first or total - struct.unpack('>I8', first) - (#first - 8) / 28 < most then break end
    redis.call('LPOP', list)
  end
  return string.format('%d', total)
end
