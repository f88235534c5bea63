-- The claims of a shard, a hash: claim token (8 bytes) -> end of the lease (Unix ms, 8 bytes), ids (20 bytes each).
-- One record holds all messages of a claim and shrinks as they leave it. Its field goes with the last one. A message
-- that a renewal does not name keeps its lease (moves/renew.lua): in a field of the token and the end of that lease.
--- @include include/ids
--- @include include/pieces
local TOKEN, LEASE = 8, 8

-- Returns the end of the lease.
local function claim_end(record)
  return (struct.unpack('>I8', record))
end

local function claim_record(end_ms, ids)
  return struct.pack('>I8', end_ms) .. ids
end

-- Returns a record's ids that are in the set `wanted`, and the others; both concatenated.
local function claim_split(record, wanted)
  local named, others = {}, {}
  for at = LEASE + 1, #record, ID_BYTES do
    local id = string.sub(record, at, at + ID_BYTES - 1)
    local list = wanted[id] and named or others
    list[#list + 1] = id
  end
  return table.concat(named), table.concat(others)
end

-- Takes the ids of the set `wanted` out of one record, and moves them from this set to the set `held`.
local function record_take(claims, field, record, wanted, held)
  local named, others = claim_split(record, wanted)
  if others == '' then
    redis.call('HDEL', claims, field)
  elseif named ~= '' then
    redis.call('HSET', claims, field, string.sub(record, 1, LEASE) .. others)
  end
  for id in pairs(id_set(named)) do held[id], wanted[id] = true, nil end
end

-- Takes messages out of their claims. `wanted`: claim token -> ids, concatenated. Returns for each token what its claim
-- still held of them: true for all, or a set of ids.
local function claims_take(claims, wanted)
  local tokens, held, over, missing = {}, {}, {}, {}
  for token in pairs(wanted) do tokens[#tokens + 1] = token end
  for from = 1, #tokens, PIECE do
    local records = redis.call('HMGET', claims, unpack(tokens, from, math.min(from + PIECE - 1, #tokens)))
    for n, record in ipairs(records) do
      local token = tokens[from + n - 1]
      if record and string.sub(record, LEASE + 1) == wanted[token] then
        held[token], over[#over + 1] = true, token
      else
        local ids = id_set(wanted[token])
        held[token] = {}
        if record then record_take(claims, token, record, ids, held[token]) end
        if next(ids) then missing[token] = ids end
      end
    end
  end
  in_pieces('HDEL', claims, over)
  for _, field in ipairs(next(missing) and redis.call('HKEYS', claims) or {}) do
    local token = string.sub(field, 1, TOKEN)
    if #field > TOKEN and missing[token] then
      record_take(claims, field, redis.call('HGET', claims, field), missing[token], held[token])
    end
  end
  return held
end

-- Returns whether a claim held a message; true only once for each. `held` is what claims_take returned.
local function was_held(held, token, id)
  local ids = held[token]
  if ids == true then return true end
  local found = ids[id]
  ids[id] = nil
  return found
end

-- Does the same for members (id and token), every `step`-th of `values` from a place on.
local function claims_take_members(claims, values, place, step)
  local wanted = {}
  for at = place, #values, step do
    local token = string.sub(values[at], 21)
    local ids = wanted[token] or {}
    wanted[token], ids[#ids + 1] = ids, string.sub(values[at], 1, 20)
  end
  for token, ids in pairs(wanted) do wanted[token] = table.concat(ids) end
  return claims_take(claims, wanted)
end

-- Returns the messages of these records: id -> end of its lease.
local function claimed_ids(records)
  local ends = {}
  for _, record in ipairs(records) do
    for at = LEASE + 1, #record, ID_BYTES do ends[string.sub(record, at, at + ID_BYTES - 1)] = claim_end(record) end
  end
  return ends
end
