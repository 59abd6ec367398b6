-- open: prefix, node, user, resource, row, field and place of the node's index, sessions that a user may have.
-- The row takes the place of whatever has its resource. Answers the sessions of this node that end with it.
--
-- This first part is for a resource that nobody has, by far the most frequent case: what the rest needs isn't even made.
local user_hash = ARGV[1] .. 'u:' .. ARGV[3]
local is_free = redis.call('HSETNX', user_hash, ARGV[4], ARGV[5]) == 1
if is_free then
  local index = ARGV[1] .. 'n:' .. ARGV[2]
  redis.call('HSET', index, ARGV[6], ARGV[7])
  -- As in replace.lua: who sweeps looks among the nodes.
  if redis.call('HLEN', index) == 1 then redis.call('HSETNX', ARGV[1] .. 'nodes', ARGV[2], '') end
  local count = redis.call('HLEN', user_hash)
  if count == 1 then redis.call('ZADD', ARGV[1] .. 'users', 0, ARGV[3]) end
  if count <= tonumber(ARGV[8]) then return {} end
end

