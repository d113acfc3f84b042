# The shared library, and `make install`: program, library, headers, package files, docs. What is installed can be moved
# as a whole and holds no path of this machine.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Relative paths, so that the tree can be moved.
file(RELATIVE_PATH qkv_bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH qkv_pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" qkv_pc_to_prefix ${qkv_pc_to_prefix})
string(REGEX REPLACE "/$" "" qkv_bin_to_lib ${qkv_bin_to_lib})
set(qkv_doc_dir ${CMAKE_INSTALL_DATADIR}/doc/qkvshare)

# libqkvshare: of all its code only the C API is seen from outside.
set(qkv_exports ${PROJECT_SOURCE_DIR}/src/api/exports.map)
add_library(qkv_shared SHARED $<TARGET_OBJECTS:qkv_api>)
target_link_libraries(qkv_shared PRIVATE qkv_runtime)
target_link_options(qkv_shared PRIVATE -Wl,--version-script=${qkv_exports})
target_compile_features(qkv_shared INTERFACE cxx_std_20)
set_target_properties(qkv_shared PROPERTIES
  OUTPUT_NAME qkvshare EXPORT_NAME qkvshare LINKER_LANGUAGE CXX LINK_DEPENDS ${qkv_exports}
  # Before 1.0 a minor version may change the interface.
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

# llama.cpp's libraries lie in a folder of their own, with its licences, unless an installed llama.cpp is used.
if(QKV_LLAMA_DIR)
  set_target_properties(qkvshare PROPERTIES INSTALL_RPATH "$ORIGIN/${qkv_bin_to_lib}/qkvshare")
  set_target_properties(qkv_shared PROPERTIES INSTALL_RPATH "$ORIGIN/qkvshare")
  file(GLOB qkv_llama_libraries ${QKV_LLAMA_DIR}/build/bin/*.so)
  foreach(library ${qkv_llama_libraries})
    file(REAL_PATH ${library} real_library)
    get_filename_component(soname ${library} NAME)
    if(IS_SYMLINK ${library})
      file(READ_SYMLINK ${library} soname)  # libllama.so -> libllama.so.0
    endif()
    install(PROGRAMS ${real_library} DESTINATION ${CMAKE_INSTALL_LIBDIR}/qkvshare RENAME ${soname})
  endforeach()
  # Its headers, for programs that use the same llama.cpp.
  file(GLOB qkv_llama_headers ${QKV_LLAMA_DIR}/source/include/*.h ${QKV_LLAMA_DIR}/source/ggml/include/*.h)
  install(FILES ${qkv_llama_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/qkvshare/llama.cpp)
  set(qkv_config_llama_includes "\"\${PACKAGE_PREFIX_DIR}/${CMAKE_INSTALL_INCLUDEDIR}/qkvshare/llama.cpp\"")
  foreach(lib llama ggml ggml-base)
    string(APPEND qkv_config_llama_libraries
           "\n    \"\${PACKAGE_PREFIX_DIR}/${CMAKE_INSTALL_LIBDIR}/qkvshare/lib${lib}.so.0\"")
  endforeach()
  install(FILES ${QKV_LLAMA_DIR}/source/LICENSE DESTINATION ${qkv_doc_dir}/llama.cpp)
  install(DIRECTORY ${QKV_LLAMA_DIR}/source/licenses DESTINATION ${qkv_doc_dir}/llama.cpp)
else()
  set_target_properties(qkvshare qkv_shared PROPERTIES INSTALL_RPATH "${qkv_llama_lib_dirs}")
  set(qkv_config_llama_includes "${qkv_llama_includes}")
  foreach(lib llama ggml ggml-base)
    get_target_property(location qkv_llama_lib_${lib} IMPORTED_LOCATION)
    string(APPEND qkv_config_llama_libraries "\n    \"${location}\"")
  endforeach()
endif()

install(TARGETS qkvshare)
install(TARGETS qkv_shared EXPORT qkvshare INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/qkvshare DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE docs/card_format.md docs/policies.md docs/profile_format.md DESTINATION ${qkv_doc_dir})

set(qkv_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/qkvshare)
install(EXPORT qkvshare FILE qkvshareTargets.cmake NAMESPACE qkvshare:: DESTINATION ${qkv_package_dir})
configure_package_config_file(cmake/qkvshareConfig.cmake.in ${PROJECT_BINARY_DIR}/qkvshareConfig.cmake
                              INSTALL_DESTINATION ${qkv_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/qkvshareConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(cmake/qkvshare.pc.in ${PROJECT_BINARY_DIR}/qkvshare.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/qkvshareConfig.cmake ${PROJECT_BINARY_DIR}/qkvshareConfigVersion.cmake
        DESTINATION ${qkv_package_dir})
install(FILES ${PROJECT_BINARY_DIR}/qkvshare.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
