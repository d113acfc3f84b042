# Libraries from the system, and llama.cpp.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
if(QKV_TESTS)
  find_package(GTest REQUIRED)
endif()
if(QKV_BENCH)
  find_package(benchmark QUIET)
endif()

# qkv_library(TARGET HEADER LIBRARY PACKAGE): an imported target for a library that comes without a CMake package.
# LIBRARY "" means headers only.
function(qkv_library target header library package)
  string(MAKE_C_IDENTIFIER "${target}" id)
  find_path(${id}_include ${header})
  mark_as_advanced(${id}_include)
  if(NOT ${id}_include)
    message(FATAL_ERROR "${header} was not found: install ${package}, or run tools/setup.sh")
  endif()
  add_library(${target} INTERFACE IMPORTED)
  target_include_directories(${target} SYSTEM INTERFACE ${${id}_include})
  if(library)
    find_library(${id}_library ${library})
    mark_as_advanced(${id}_library)
    if(NOT ${id}_library)
      message(FATAL_ERROR "lib${library} was not found: install ${package}, or run tools/setup.sh")
    endif()
    target_link_libraries(${target} INTERFACE ${${id}_library})
  endif()
endfunction()

qkv_library(qkv::sodium sodium.h sodium libsodium-dev)
qkv_library(qkv::xxhash xxhash.h xxhash libxxhash-dev)
# Highway is headers only, but for its asserts, which are there in these builds.
set(qkv_highway_library "")
if(QKV_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(qkv_highway_library hwy)
endif()
qkv_library(qkv::highway hwy/highway.h "${qkv_highway_library}" libhwy-dev)
qkv_library(qkv::cli11 CLI/CLI.hpp "" libcli11-dev)
qkv_library(qkv::yaml yaml-cpp/yaml.h yaml-cpp libyaml-cpp-dev)

# qkv::llama: libllama, ggml and llama-common (chat templates), with their headers as system headers.
set(qkv_llama_hint "run 'make', which builds llama.cpp and passes it, or run tools/setup.sh and give \
-DQKV_LLAMA_DIR=\$(tools/setup/llama.py --dir), or give -DQKV_LLAMA_PREFIX=<an installed llama.cpp>")
if(QKV_LLAMA_DIR)
  set(qkv_llama_includes)
  foreach(dir include ggml/include common vendor)
    list(APPEND qkv_llama_includes ${QKV_LLAMA_DIR}/source/${dir})
  endforeach()
  set(qkv_llama_lib_dirs ${QKV_LLAMA_DIR}/build/bin)
  if(NOT EXISTS ${QKV_LLAMA_DIR}/source/include/llama.h)
    message(FATAL_ERROR "QKV_LLAMA_DIR=${QKV_LLAMA_DIR} holds no built llama.cpp: ${qkv_llama_hint}")
  endif()
elseif(QKV_LLAMA_PREFIX)
  find_path(qkv_llama_h llama.h PATHS ${QKV_LLAMA_PREFIX} PATH_SUFFIXES include include/llama REQUIRED NO_DEFAULT_PATH)
  find_path(qkv_llama_ggml_h ggml.h PATHS ${QKV_LLAMA_PREFIX} PATH_SUFFIXES include include/ggml REQUIRED
            NO_DEFAULT_PATH)
  # An installation may leave out the headers of llama-common: then give QKV_LLAMA_COMMON_INCLUDE.
  set(QKV_LLAMA_COMMON_INCLUDE "" CACHE PATH "Folder with llama.cpp's common/chat.h, where the prefix has none")
  find_path(qkv_llama_chat_h chat.h PATHS ${QKV_LLAMA_COMMON_INCLUDE} ${QKV_LLAMA_PREFIX}
            PATH_SUFFIXES include include/llama-common include/llama/common include/common NO_DEFAULT_PATH)
  if(NOT qkv_llama_chat_h)
    message(FATAL_ERROR "QKV_LLAMA_PREFIX=${QKV_LLAMA_PREFIX} has no chat.h of llama-common: give "
                        "-DQKV_LLAMA_COMMON_INCLUDE=<llama.cpp source of the same version>/common")
  endif()
  set(qkv_llama_includes ${qkv_llama_h} ${qkv_llama_ggml_h} ${qkv_llama_chat_h})
  foreach(dir vendor ../vendor)  # the JSON library that chat.h uses, beside common/ in a source tree
    if(EXISTS ${qkv_llama_chat_h}/${dir}/nlohmann/json.hpp)
      list(APPEND qkv_llama_includes ${qkv_llama_chat_h}/${dir})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES qkv_llama_includes)
  file(GLOB qkv_llama_lib_dirs ${QKV_LLAMA_PREFIX}/lib ${QKV_LLAMA_PREFIX}/lib64
       ${QKV_LLAMA_PREFIX}/lib/${CMAKE_LIBRARY_ARCHITECTURE})
else()
  message(FATAL_ERROR "llama.cpp is missing: ${qkv_llama_hint}")
endif()

add_library(qkv::llama INTERFACE IMPORTED)
target_include_directories(qkv::llama SYSTEM INTERFACE ${qkv_llama_includes})
foreach(lib llama-common llama ggml ggml-base ggml-cpu)
  # Looked up anew each time: the folder changes when llama.cpp is rebuilt for another compiler or CPU.
  unset(qkv_lib_path CACHE)
  find_library(qkv_lib_path ${lib} PATHS ${qkv_llama_lib_dirs} NO_DEFAULT_PATH)
  if(qkv_lib_path)
    add_library(qkv_llama_lib_${lib} SHARED IMPORTED)
    set_target_properties(qkv_llama_lib_${lib} PROPERTIES IMPORTED_LOCATION ${qkv_lib_path} IMPORTED_NO_SONAME FALSE)
    target_link_libraries(qkv::llama INTERFACE qkv_llama_lib_${lib})
  elseif(NOT lib STREQUAL "ggml-cpu")  # loaded at run time in some installations
    message(FATAL_ERROR "lib${lib} was not found in ${qkv_llama_lib_dirs}: ${qkv_llama_hint}")
  endif()
endforeach()
unset(qkv_lib_path CACHE)
