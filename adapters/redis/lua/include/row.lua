-- Adds what people see of a message to a reply: id, score, size of the envelope, head of the envelope, last reason.
-- Returns the bytes that are left to read; nothing where they do not suffice and the reply has a message already.
--- @include include/head
local function row_add(reply, messages, why, id, score, payload_bytes, bytes_left)
  local size = redis.call('HSTRLEN', messages, id)
  if size == 0 and redis.call('HEXISTS', messages, id) == 0 then return bytes_left end
  if #reply > 3 and size > bytes_left then return nil end
  reply[#reply + 1] = id
  reply[#reply + 1] = score
  reply[#reply + 1] = size
  reply[#reply + 1] = envelope_head(redis.call('HGET', messages, id), payload_bytes)
  reply[#reply + 1] = redis.call('HGET', why, id) or ''
  return bytes_left - size
end
