-- The store's clock, the only one that decides what is due: microseconds since 1970, exact in a double until 2255.
local function now_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end
