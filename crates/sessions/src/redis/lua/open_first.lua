-- open: prefix, node, user, resource, row, field and location of the node's index, sessions that a user may have.
-- The row replaces that of any session with its resource. Returns the sessions of this node that end by it.
--
-- This first part handles a free resource, by far the most frequent case, before the functions of the rest are created.
local user_hash = ARGV[1] .. 'u:' .. ARGV[3]
local is_free = redis.call('HSETNX', user_hash, ARGV[4], ARGV[5]) == 1
if is_free then
  local index = ARGV[1] .. 'n:' .. ARGV[2]
  redis.call('HSET', index, ARGV[6], ARGV[7])
  -- As in replace.lua: sweeps look for nodes here.
  if redis.call('HLEN', index) == 1 then redis.call('HSETNX', ARGV[1] .. 'nodes', ARGV[2], '') end
  local count = redis.call('HLEN', user_hash)
  if count == 1 then redis.call('ZADD', ARGV[1] .. 'users', 0, ARGV[3]) end
  if count <= tonumber(ARGV[8]) then return {} end
end

