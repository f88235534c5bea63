-- In the recent list a redelivered message finds the id of its first copy. Each entry begins with the total number of
-- messages before it, so that the list can be trimmed by messages without reading it.
local function recent_add(list, entry, most)
  local last = redis.call('LINDEX', list, -1)
  local before_us = last and struct.unpack('>I8', last) + (#last - 8) / 28 or 0
  redis.call('RPUSH', list, struct.pack('>I8', before_us) .. entry)
  local total = before_us + #entry / 28
  while true do
    local first = redis.call('LINDEX', list, 0)
    if not first or total - struct.unpack('>I8', first) - (#first - 8) / 28 < most then break end
    redis.call('LPOP', list)
  end
end
