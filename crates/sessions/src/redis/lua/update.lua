-- update: prefix, node, user, resource, row, field of the node's index.
-- Replaces a session's row. Returns 1; 0 when the session does not exist; -1 when another node has ended it.
local row = ARGV[5]
local user_hash = ARGV[1] .. 'u:' .. ARGV[3]
local old = redis.call('HGET', user_hash, ARGV[4])
if not old or string.sub(old, 1, 16) ~= string.sub(row, 1, 16) then
  return -redis.call('HEXISTS', ARGV[1] .. 'mail:' .. ARGV[2], ARGV[6])
end
-- A row with a greater revision includes this change.
for i = 17, 22 do
  local new_byte, old_byte = string.byte(row, i), string.byte(old, i) or 0
  if new_byte < old_byte then return 1 end
  if new_byte > old_byte then break end
end
redis.call('HSET', user_hash, ARGV[4], row)
return 1
