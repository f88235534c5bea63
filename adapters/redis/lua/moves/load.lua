#!lua flags=allow-oom
-- new -> parked: messages that only the journal had. Also at maxmemory: they are due soon, or about to be cancelled.
-- Their envelopes name their own id as the first copy, so that they are not unloaded again. The `known` ones, which
-- the store had besides the journal, get that mark here.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 key index (hash)   4 counts (hash)   5 cold (string)
-- ARGV  1 mark that the caller read   2 new mark   3 wake channel   4 number of known ids, then these
--       then for each message: id, due ms, envelope
-- Returns  1; 0 if the shard has another mark, and nothing was done
--- @include include/envelope
--- @include include/key_index
--- @include include/routes
--- @include include/wake
local DUE, MESSAGES, INDEX, COUNTS, COLD = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
if redis.call('GET', COLD) ~= ARGV[1] then return 0 end
local first_at, earliest, changed = 5 + ARGV[4], nil, false
for at = 5, first_at - 1 do
  local envelope = redis.call('HGET', MESSAGES, ARGV[at])
  local loaded = envelope and envelope_loaded(envelope, ARGV[at])
  if loaded ~= envelope then
    redis.call('HSET', MESSAGES, ARGV[at], loaded)
    changed = true
  end
end
for at = first_at, #ARGV, 3 do
  local id, due, envelope = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
  if redis.call('HEXISTS', MESSAGES, id) == 0 then
    redis.call('ZADD', DUE, due, id)
    redis.call('HSET', MESSAGES, id, envelope)
    local field, route = envelope_field(envelope), envelope_route(envelope)
    if field then index_add(INDEX, field, id) end
    route_add(COUNTS, 'cold', route, -1)
    route_add(COUNTS, 'parked', route, 1)
    earliest = math.min(earliest or due, due)
  end
end
if earliest or changed then redis.call('SET', COLD, ARGV[2]) end
if earliest then wake_if_nearer(DUE, ARGV[3], earliest) end
return 1
