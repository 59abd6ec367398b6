-- register: prefix, node, sessions that a user may have, then user, resource and row of each session.
-- Registers sessions of a node that Redis may lack. A session that others have ended stays ended, and one whose resource
-- belongs to a newer session of a living node ends. Returns the sessions of this node that end.
local here, most = ARGV[2], tonumber(ARGV[3])
local losers = {}

local function lose(id, why) losers[#losers + 1] = id .. why end

local function register(user, resource, row)
  local id = id_of(row)
  local why = redis.call('HGET', prefix .. 'mail:' .. here, field_of(id))
  if why then return lose(id, why) end
  local old = row_at(user, resource)
  local old_id = old and id_of(old)
  if old_id == id then
    local is_later = is_greater(row, old, 17, 22)
    return list(user, resource, is_later and row or old)
  end
  if old and is_newer(old_id, id) then
    if node_of(old_id) == here then return end -- opened since these were read
    if is_alive(node_of(old_id)) then
      unlist(id)
      return lose(id, 'replaced')
    end
  end
  replace(user, resource, row, here, old)
  for _, loser in ipairs(crowd_out(user, here, most)) do losers[#losers + 1] = loser end
end

for i = 4, #ARGV, 3 do register(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
return losers
