-- Tells the instance that drains the shard that its next due moment moved closer. Only a hint, which may be lost.
local function wake_if_nearer(due_key, channel, earliest_ms)
  local head = redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES')
  if tonumber(head[2]) == earliest_ms then
    redis.call('PUBLISH', channel, string.format('%d', earliest_ms))
  end
end
