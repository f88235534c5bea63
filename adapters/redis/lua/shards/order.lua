#!lua flags=allow-oom
-- Orders that a route is paused, drains or runs. A route that runs and was never paused has no field. An order that
-- repeats the last one's state keeps its moment. Works while memory is full, because that is when routes are paused.
--
-- KEYS  1 orders (hash route -> JSON: state, since_ms, pauses (begin and end of the last ended), who, via, reason)
-- ARGV  1 route   2 state (running, paused, draining)   3 who   4 via   5 reason
-- Returns  1 if the state of the route changed, else 0
--- @include include/now
local ORDERS = KEYS[1]
local PAUSES_MAX = 8
local route, state = ARGV[1], ARGV[2]
local last = redis.call('HGET', ORDERS, route)
local whole, before = pcall(cjson.decode, last or '')
if not whole or type(before) ~= 'table' then before = {state = last and 'paused' or 'running'} end
local same, now_ms = before.state == state, math.floor(now_us() / 1000)
local since_ms = same and tonumber(before.since_ms) or now_ms
local pauses = type(before.pauses) == 'table' and before.pauses or {}
if before.state == 'paused' and not same then
  pauses[#pauses + 1] = {tonumber(before.since_ms) or now_ms, now_ms}
  if #pauses > PAUSES_MAX then table.remove(pauses, 1) end
end
if state == 'running' and #pauses == 0 then
  redis.call('HDEL', ORDERS, route)
elseif state ~= 'running' or not same then
  local spans = {}
  for place, pause in ipairs(pauses) do spans[place] = string.format('[%d,%d]', pause[1], pause[2]) end
  local moments = string.format('{"since_ms":%d,"pauses":[%s],', since_ms, table.concat(spans, ','))
  local words = cjson.encode({state = state, who = ARGV[3], via = ARGV[4], reason = ARGV[5]})
  redis.call('HSET', ORDERS, route, moments .. string.sub(words, 2))
end
return same and 0 or 1
