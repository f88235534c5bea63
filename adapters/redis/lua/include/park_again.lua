-- Parks claimed messages again at their due moment, and counts them: those of the claims with these tokens, at most
-- `limit` of them. Returns their number and the earliest due moment.
--- @include include/claims
--- @include include/envelope
local function park_again(due_key, messages, claims, counts, tokens, limit)
  local number, earliest = 0, nil
  for _, token in ipairs(tokens) do
    local record = redis.call('HGET', claims, token)
    local last = math.min(#record, LEASE + (limit - number) * ID_BYTES)
    local scores = {}
    for at = LEASE + 1, last, ID_BYTES do
      local id = string.sub(record, at, at + ID_BYTES - 1)
      local envelope = redis.call('HGET', messages, id)
      if envelope then
        local due = envelope_due(envelope)
        scores[#scores + 1], scores[#scores + 2] = string.format('%d', due), id
        if not earliest or due < earliest then earliest = due end
      end
    end
    if last < #record then
      redis.call('HSET', claims, token, string.sub(record, 1, LEASE) .. string.sub(record, last + 1))
    else
      redis.call('HDEL', claims, token)
    end
    in_pieces('ZADD', due_key, scores)
    number = number + #scores / 2
    if number >= limit then break end
  end
  if number > 0 then redis.call('HINCRBY', counts, 'recovered', number) end
  return number, earliest
end
