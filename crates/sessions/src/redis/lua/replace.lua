-- How a session is inserted. Follows names.lua and ends.lua.

-- Bytes of the shortest row: an id, a revision, no priority.
local ROW_BYTES = 23

-- Whether the bytes of a are greater. Lua's own comparison of strings goes by the server's locale.
local function is_greater(a, b, from, to)
  for i = from, to do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return false
end
local function is_newer(id, other) return is_greater(id, other, 1, 16) end

-- The row of a user's resource; a value that is too short for a row counts as none.
local function row_at(user, resource)
  local row = redis.call('HGET', user_key(user), resource)
  if row and #row >= ROW_BYTES then return row end
  return false
end

local function list(user, resource, row)
  local id = id_of(row)
  local packed = string.char(math.floor(#user / 256), #user % 256) .. user .. resource
  local node = node_of(id)
  local index = index_key(node)
  redis.call('HSET', user_key(user), resource, row)
  redis.call('HSET', index, field_of(id), packed)
  -- A sweep removes a node that has lost its lease from this hash. If it dies now, this session must be swept as well.
  if redis.call('HLEN', index) == 1 then redis.call('HSETNX', prefix .. 'nodes', node, '') end
end

-- Inserts a row, or replaces that of another session, whose node is notified.
local function replace(user, resource, row, here, old)
  if not old then
    redis.call('ZADD', prefix .. 'users', 0, user)
  else
    local id = id_of(old)
    local node = node_of(id)
    unlist(id)
    -- A node without a lease may come back, and would register the session again if it were not notified.
    if node ~= here then notify(node, id, 'replaced') end
  end
  list(user, resource, row)
end

-- Ends the oldest sessions beyond the limit of a user, except the spared one. Sessions of dead nodes don't count and are
-- removed. Returns the ended ones of this node; other nodes are notified.
local function crowd_out(user, here, most, spared)
  local losers = {}
  if redis.call('HLEN', user_key(user)) <= most then return losers end
  local rows = redis.call('HGETALL', user_key(user))
  local sessions, known = {}, { [here] = true }
  for i = 1, #rows, 2 do
    local id = id_of(rows[i + 1])
    local is_row = #rows[i + 1] >= ROW_BYTES
    local node = is_row and node_of(id)
    if is_row and known[node] == nil then known[node] = is_alive(node) end
    if is_row and known[node] then
      sessions[#sessions + 1] = { resource = rows[i], id = id, node = node }
    elseif is_row then
      drop(user, rows[i], id)
    end
  end
  table.sort(sessions, function(a, b) return is_newer(b.id, a.id) end)
  local surplus = #sessions - most
  for _, session in ipairs(sessions) do
    if surplus <= 0 then break end
    if session.id ~= spared then
      surplus = surplus - 1
      drop(user, session.resource, session.id)
      if session.node == here then
        losers[#losers + 1] = session.id .. 'crowded'
      else
        notify(session.node, session.id, 'crowded')
      end
    end
  end
  return losers
end

