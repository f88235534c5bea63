-- Ids of messages in one string, one after the other.
local ID_BYTES = 20

-- Returns concatenated ids as the keys of a table.
local function id_set(ids)
  local set = {}
  for at = 1, #ids, ID_BYTES do set[string.sub(ids, at, at + ID_BYTES - 1)] = true end
  return set
end

-- Returns the ids that are not in the set `gone`.
local function ids_without(ids, gone)
  local kept = {}
  for at = 1, #ids, ID_BYTES do
    local id = string.sub(ids, at, at + ID_BYTES - 1)
    if not gone[id] then kept[#kept + 1] = id end
  end
  return table.concat(kept)
end

-- Returns the ids that are in the set `wanted`, each once, and removes them from it.
local function ids_within(ids, wanted)
  local found = {}
  for at = 1, #ids, ID_BYTES do
    local id = string.sub(ids, at, at + ID_BYTES - 1)
    if wanted[id] then found[#found + 1], wanted[id] = id, nil end
  end
  return table.concat(found)
end
