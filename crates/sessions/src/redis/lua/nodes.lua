-- nodes: prefix. Returns the number of users, and of each node: id, name, milliseconds until its lease expires, sessions.
local known = {}
local names = redis.call('HGETALL', prefix .. 'nodes')
for i = 1, #names, 2 do
  local node = names[i]
  known[#known + 1] = { node, names[i + 1], lease_ms(node), redis.call('HLEN', index_key(node)) }
end
local nodes = { redis.call('ZCARD', prefix .. 'users'), known }
