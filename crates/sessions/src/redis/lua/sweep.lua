-- sweep: prefix, node, cursor, how many approximately.
-- Removes some sessions of a node that has no lease. Returns how many, and the next cursor: 0 when it is done.
local node = ARGV[2]
if is_alive(node) then return { 0, '0' } end
local index = index_key(node)
local node_bytes = struct.pack('>I4', tonumber(node))
local page = redis.call('HSCAN', index, ARGV[3], 'COUNT', ARGV[4])
local removed = 0
for i = 1, #page[2], 2 do
  local field = page[2][i]
  local user, resource = location_of(page[2][i + 1])
  if #field == 12 then
    removed = removed + drop(user, resource, string.sub(field, 1, 8) .. node_bytes .. string.sub(field, 9, 12))
  else
    redis.call('HDEL', index, field)
  end
end
if redis.call('EXISTS', index) == 0 then redis.call('HDEL', prefix .. 'nodes', node) end
return { removed, page[1] }
