#!lua flags=allow-oom
-- parked -> gone: the journal has the message, and its row says so. It is counted as cold, and no log mentions it.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 key index (hash)   4 counts (hash)   5 cold (string)
-- ARGV  1 new mark, then for each message: id, due ms
-- Returns  how many left
--- @include include/envelope
--- @include include/key_index
--- @include include/routes
local DUE, MESSAGES, INDEX, COUNTS, COLD = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
if redis.call('EXISTS', COLD) == 0 then return 0 end
local unloaded = 0
for at = 2, #ARGV, 2 do
  local id, due = ARGV[at], tonumber(ARGV[at + 1])
  local envelope = redis.call('HGET', MESSAGES, id)
  if envelope and tonumber(redis.call('ZSCORE', DUE, id)) == due and envelope_untouched(envelope, due) then
    redis.call('ZREM', DUE, id)
    redis.call('HDEL', MESSAGES, id)
    local field, route = envelope_field(envelope), envelope_route(envelope)
    if field then index_remove(INDEX, field, id) end
    route_add(COUNTS, 'parked', route, -1)
    route_add(COUNTS, 'cold', route, 1)
    unloaded = unloaded + 1
  end
end
if unloaded > 0 then redis.call('SET', COLD, ARGV[1]) end
return unloaded
