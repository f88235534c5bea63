-- Parks claimed messages again at their due moment, and counts them. `members` are ids with their claim tokens.
-- Returns their number and the earliest due moment.
--- @include include/envelope
local function park_again(due_key, messages, claimed, counts, members)
  local number, earliest = 0, nil
  for _, member in ipairs(members) do
    local id = string.sub(member, 1, 20)
    redis.call('ZREM', claimed, member)
    local envelope = redis.call('HGET', messages, id)
    if envelope then
      local due = envelope_due(envelope)
      redis.call('ZADD', due_key, due, id)
      number = number + 1
      if not earliest or due < earliest then earliest = due end
    end
  end
  if number > 0 then redis.call('HINCRBY', counts, 'recovered', number) end
  return number, earliest
end
