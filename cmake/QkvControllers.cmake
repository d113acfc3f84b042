# data/controllers/*.json become part of a module, so that they are found wherever the program is installed.
function(qkv_built_in_controllers module)
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/data/controllers/*.json)
  set(QKV_CONTROLLERS "")
  foreach(file IN LISTS files)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    cmake_path(GET file STEM LAST_ONLY name)
    file(READ ${file} json)
    string(APPEND QKV_CONTROLLERS "    {\"${name}\", R\"json(${json})json\"},\n")
  endforeach()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/built_in_controllers.cc.in
                 ${PROJECT_BINARY_DIR}/built_in_controllers.cc @ONLY)
  target_sources(qkv_${module} PRIVATE ${PROJECT_BINARY_DIR}/built_in_controllers.cc)
endfunction()
