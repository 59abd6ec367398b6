-- The second part of open: another session has the resource, or the user has too many.
local here, user, resource, row, most = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[8])
local id = id_of(row)
if not is_free then
  local old = row_at(user, resource)
  if old and node_of(id_of(old)) == here and is_newer(id_of(old), id) then
    return {} -- the request of a newer session of this node overtook this one
  end
  replace(user, resource, row, here, old)
end
return crowd_out(user, here, most, id)
