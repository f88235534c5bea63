-- The key index is a hash: route, NUL, the producer's key -> the ids of the messages with this key, 20 bytes each,
-- concatenated. Above 16 ids the key no longer identifies a message (some producers send message_id "load" with every
-- message). Then the value becomes '*' and the number of ids, so that no value grows without bound.
--- @include include/ids
local IDS_MAX = 16

local function index_add(index, field, ids)
  local value = redis.call('HGET', index, field) or ''
  local added = #ids / ID_BYTES
  if string.sub(value, 1, 1) == '*' then
    value = '*' .. string.format('%d', tonumber(string.sub(value, 2)) + added)
  elseif #value / ID_BYTES + added > IDS_MAX then
    value = '*' .. string.format('%d', #value / ID_BYTES + added)
  else
    value = value .. ids
  end
  redis.call('HSET', index, field, value)
end

local function index_remove(index, field, ids)
  local value = redis.call('HGET', index, field)
  if not value then return end
  if string.sub(value, 1, 1) == '*' then
    local left = tonumber(string.sub(value, 2)) - #ids / ID_BYTES
    value = left > 0 and '*' .. string.format('%d', left) or ''
  else
    local gone = {}
    for at = 1, #ids, ID_BYTES do gone[string.sub(ids, at, at + ID_BYTES - 1)] = true end
    value = ids_without(value, gone)
  end
  if value == '' then
    redis.call('HDEL', index, field)
  else
    redis.call('HSET', index, field, value)
  end
end
