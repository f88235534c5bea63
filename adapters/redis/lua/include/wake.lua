-- Tells the instance that drains the shard that its next due moment moved closer. Only a hint, which may be lost.
-- `earliest_ms` is that of the messages of the call. If a later one of the call replaced that message, the first one
-- that is there may be of the call, too.
--- @include include/held
local function wake_if_nearer(due_key, channel, earliest_ms)
  local head = redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES')
  local head_ms = tonumber(head[2])
  if head_ms and head_ms >= earliest_ms and head_ms < HELD_MS then
    redis.call('PUBLISH', channel, string.format('%d', head_ms))
  end
end
